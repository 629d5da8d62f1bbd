"""The AWS side: one module, one stack."""
