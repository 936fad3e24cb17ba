package config

import _ "embed" // demo.yaml

// Demo is the configuration of serve --demo, but for its upstream.
//
//go:embed demo.yaml
var Demo []byte
