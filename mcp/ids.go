package mcp

import "sync/atomic"

// IDs issues the JSON-RPC ids of one device. One counter serves all sessions of
// a device, old and new: a reply can come out on a later connection than its
// request, and must not meet a request that reuses its id. The zero value
// starts at 1. IDs is safe for concurrent use.
type IDs struct{ last atomic.Uint32 }

// NewIDs returns a counter that goes on after last, which is best an id stored
// from the device's previous calls, or a random one.
func NewIDs(last int32) *IDs {
	ids := new(IDs)
	ids.last.Store(uint32(last))
	return ids
}

// Next returns the next id, from 1 to 2147483647 and then from 1 again: the
// firmware keeps ids in an int, and answers to larger ones with a wrong id.
func (ids *IDs) Next() int32 {
	for {
		if id := ids.last.Add(1) & (1<<31 - 1); id != 0 {
			return int32(id)
		}
	}
}

// Peek returns the id that the next call of Next returns, if no other comes before.
func (ids *IDs) Peek() int32 {
	id := (ids.last.Load() + 1) & (1<<31 - 1)
	return max(int32(id), 1)
}
