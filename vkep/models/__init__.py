"""Small models with random weights, made from nothing but this package: `vkep model NAME` writes them."""
