"""Programs that run agents, however they are spoken to: started, watched, and ended to their last child."""
