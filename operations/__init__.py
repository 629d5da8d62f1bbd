"""What a person does around a deployment."""
