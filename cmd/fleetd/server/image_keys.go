package server

import (
	"crypto/ed25519"
	"fmt"
	"os"

	"fleetd/fleet/espimage"
)

// manifestKeys reads the public keys that manifests must be signed with.
func manifestKeys(files []string) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--manifest-key: %w", err)
		}
		some, err := espimage.ParseReleaseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("--manifest-key %s: %w", name, err)
		}
		keys = append(keys, some...)
	}
	return keys, nil
}

// imageKeys reads the public keys whose image signatures are trusted.
func imageKeys(files []string) ([]espimage.Key, error) {
	var keys []espimage.Key
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--image-key: %w", err)
		}
		some, err := espimage.ParseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("--image-key %s: %w", name, err)
		}
		keys = append(keys, some...)
	}
	return keys, nil
}
