"""The Kubernetes side: one module, one chart, synthesized by cdk8s into numbered files in the order of application."""
