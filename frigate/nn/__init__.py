"""The model: the gated sum (aggregate), the gated convolution (gated_conv), the priors (moments), Frigate itself."""
