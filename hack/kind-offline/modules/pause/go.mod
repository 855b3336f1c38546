module heterotrain.dev/hack/kind/pause

go 1.24.0
