package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
)

// A ToolDigest is the SHA-256 of the JSON {"description":...,"input_schema":...} of
// a tool, with sorted keys and without spaces. A schema that is no JSON is a string in it.
type ToolDigest [sha256.Size]byte

// Digest returns the digest of the tool as its device lists it.
func (t Tool) Digest() ToolDigest {
	var schema any
	if json.Unmarshal(t.InputSchema, &schema) != nil {
		schema = string(t.InputSchema)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(map[string]any{"description": t.Description, "input_schema": schema}) // what was unmarshalled marshals
	return sha256.Sum256(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

type inventoryTool struct{ inventory, tool string }

// maxToolDigests bounds the digests kept; hostile devices have many inventories.
const maxToolDigests = 10_000

// ToolDigests keeps the digests of tools by their inventory.
type ToolDigests struct {
	mu    sync.RWMutex
	known map[inventoryTool]ToolDigest
}

// Of returns the digest of the tool of an inventory.
func (c *ToolDigests) Of(inventory string, tool Tool) ToolDigest {
	key := inventoryTool{inventory, tool.Name}
	c.mu.RLock()
	digest, known := c.known[key]
	c.mu.RUnlock()
	if known {
		return digest
	}
	digest = tool.Digest()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxToolDigests {
		c.known = make(map[inventoryTool]ToolDigest)
	}
	c.known[key] = digest
	return digest
}
