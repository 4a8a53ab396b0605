"""The API endpoints, one module per resource. /v1/openapi.json describes every response."""
