"""Programs that run agents: started, watched, and ended with all their children."""
