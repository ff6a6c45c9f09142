"""Registry: models as versions that whoever has MLflow and torch can load and ask."""
