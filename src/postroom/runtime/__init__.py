"""The agent loop: models, tools, suspension, background tasks, checkpoints. One executor among others."""
