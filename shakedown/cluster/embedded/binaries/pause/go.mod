module shakedown.dev/pause

go 1.24.0
