"""The official plug-in's module of this name, for whoever imports from it."""

raise ImportError(
    "byteps.torch.parallel has no DistributedDataParallel of its own: use torch's with "
    "model.register_comm_hook(None, byteps.torch.ddp_hook) (docs/training.md)"
)
