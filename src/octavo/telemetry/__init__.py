"""Events to what people read: lines now, metrics and recordings with the server and the simulator."""
