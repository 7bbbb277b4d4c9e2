"""The HTTP edge: who may come in (`guard`), how people log in (`sessions`), what machines ask (`routes`)."""
