"""Fair fine-tuning of adapters."""
