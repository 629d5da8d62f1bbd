"""`make drill-deploy`: the real CDK CLI deploys, changes and destroys a platform on an AWS emulator."""
