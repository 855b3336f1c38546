"""What is generated from the models: the CustomResourceDefinition, the chart's copy of it, and its reference page."""
