"""What every implementation of a port promises, one coroutine function a promise."""
