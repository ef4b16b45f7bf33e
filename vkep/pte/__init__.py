"""ExecuTorch programs (.pte) and their data files (.ptd), decoded and analysed without ExecuTorch, torch or Vulkan."""
