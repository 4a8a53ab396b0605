"""Match GPS traces to the roads and count them."""
