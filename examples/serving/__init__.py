"""Programs that serve compiled models; docs/serving.md and docs/language-models.md explain them."""
