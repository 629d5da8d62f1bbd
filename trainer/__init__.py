"""The bundled trainer: PyTorch FSDP2 over a Llama-family model, run by torchrun in the pod."""
