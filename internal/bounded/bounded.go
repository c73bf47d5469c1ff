// Package bounded has caches of a fixed size. Devices and clients choose many of the
// keys that fleetd caches, so each cache has a limit. A full cache drops the entry that
// was used least recently, and not all of them at once.
package bounded

import lru "github.com/hashicorp/golang-lru/v2"

// A Cache holds the entries that were used most recently. It is safe for concurrent
// use.
type Cache[K comparable, V any] = lru.Cache[K, V]

// New returns a cache for at most size entries, which must be 1 or more.
func New[K comparable, V any](size int) *Cache[K, V] {
	c, err := lru.New[K, V](size)
	if err != nil {
		panic(err)
	}
	return c
}
