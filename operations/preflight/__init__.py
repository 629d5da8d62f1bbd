"""`make preflight`: what a deployment needs of the account, looked at before it starts."""
