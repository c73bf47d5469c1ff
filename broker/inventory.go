package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// maxInventories is how many different inventories are cached to be shared. A fleet has one per
// firmware build.
const maxInventories = 256

// inventories shares the memory of equal tool lists: ten thousand devices with the same firmware
// use one copy of the list.
type inventories struct {
	known *bounded.Cache[string, fleet.Inventory]
}

func (all *inventories) of(tools []fleet.Tool) fleet.Inventory {
	id := inventoryID(tools)
	inv := fleet.Inventory{ID: id, Tools: tools, CreatedAt: time.Now().UTC()}
	if first, known, _ := all.known.PeekOrAdd(id, inv); known {
		all.known.Get(id) // it is in use
		return first
	}
	return inv
}

// inventoryID returns the SHA-256 of the tools, in the device's order, with the keys of their
// schemas sorted: firmware builds may print the same schema in another order of keys.
func inventoryID(tools []fleet.Tool) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, t := range tools {
		t.InputSchema = canonical(t.InputSchema)
		_ = enc.Encode(t) // strings and valid JSON into a hash: cannot fail
	}
	return hex.EncodeToString(h.Sum(nil))
}

// canonical sorts the keys of objects. Numbers keep their original text.
func canonical(schema json.RawMessage) json.RawMessage {
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return json.RawMessage("null")
	}
	out, err := json.Marshal(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return out
}
