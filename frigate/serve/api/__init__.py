"""The addresses of the service, a module for each kind of thing. Every answer is described in /v1/openapi.json."""
