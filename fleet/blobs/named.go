package blobs

import (
	"context"
	"fmt"
)

// Named stores small objects under names of their own, in the places that [Open] knows.
type Named struct{ bucket bucket }

// OpenNamed opens the place at a URL as [Open] does.
func OpenNamed(ctx context.Context, address string) (*Named, error) {
	s, err := Open(ctx, address)
	if err != nil {
		return nil, err
	}
	return &Named{s.bucket}, nil
}

// Put stores an object, and replaces one of the same name.
func (n *Named) Put(ctx context.Context, name string, data []byte) error {
	if err := n.bucket.there(ctx); err != nil {
		return err
	}
	if err := n.bucket.put(ctx, name, data); err != nil {
		return fmt.Errorf("store %s: %w", name, err)
	}
	return nil
}
