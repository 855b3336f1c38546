"""The predictors of own times, one per file; `PREDICTORS` in the package above names them."""
