"""Many clients' models as one stack of tensors: their gradients, batches and steps. Used by several engines."""
