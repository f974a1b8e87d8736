"""Process groups, meshes and collectives of torch.distributed."""
