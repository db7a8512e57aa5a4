"""The control service: the gateway stores credentials by it, and gets tickets."""
