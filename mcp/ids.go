package mcp

import "sync/atomic"

// IDs issues the JSON-RPC ids of one device. All sessions of a device, old and new,
// share one counter: a reply can arrive on a later connection than its request, and
// must not match a request that reuses its id. The zero value starts at 1. IDs is
// safe for concurrent use.
type IDs struct{ last atomic.Uint32 }

// NewIDs returns a counter that continues after last. The best value for last is a
// stored id of the device's previous calls; a random one will do.
func NewIDs(last int32) *IDs {
	ids := new(IDs)
	ids.last.Store(uint32(last))
	return ids
}

// Next returns the next id, from 1 to 2147483647 and then from 1 again. The
// firmware stores ids in an int, and answers larger ones with a wrong id.
func (ids *IDs) Next() int32 {
	for {
		if id := ids.last.Add(1) & (1<<31 - 1); id != 0 {
			return int32(id)
		}
	}
}

// Peek returns the id that the next call of Next will return.
func (ids *IDs) Peek() int32 {
	id := (ids.last.Load() + 1) & (1<<31 - 1)
	return max(int32(id), 1)
}
