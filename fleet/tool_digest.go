package fleet

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"fleetd/internal/bounded"
)

// A ToolDigest is the SHA-256 of a tool's JSON {"description":...,"input_schema":...}, with
// sorted keys and without spaces. A schema that is not valid JSON is a string in it.
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
	_ = e.Encode(map[string]any{"description": t.Description, "input_schema": schema}) // cannot fail
	return sha256.Sum256(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// ParseToolDigest parses a digest of 64 hex digits.
func ParseToolDigest(text string) (d ToolDigest, err error) {
	data, err := hex.DecodeString(text)
	if err != nil || len(data) != len(d) {
		return d, Refuse(ErrInvalid, "invalid_digest").At("digest")
	}
	return ToolDigest(data), nil
}

type inventoryTool struct{ inventory, tool string }

// maxToolDigests is the maximum number of cached digests; hostile devices have many
// inventories.
const maxToolDigests = 10_000

// ToolDigests caches the digests of tools by inventory.
type ToolDigests struct {
	known *bounded.Cache[inventoryTool, ToolDigest]
}

// NewToolDigests returns an empty cache.
func NewToolDigests() *ToolDigests {
	return &ToolDigests{bounded.New[inventoryTool, ToolDigest](maxToolDigests)}
}

// Of returns the digest of an inventory's tool.
func (c *ToolDigests) Of(inventory string, tool Tool) ToolDigest {
	key := inventoryTool{inventory, tool.Name}
	digest, known := c.known.Get(key)
	if !known {
		digest = tool.Digest()
		c.known.Add(key, digest)
	}
	return digest
}

// InventoryID returns the SHA-256 of the tools, in the device's order, with the keys of their
// schemas sorted: firmware builds may print the same schema in another order of keys.
func InventoryID(tools []Tool) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, t := range tools {
		t.InputSchema = canonicalSchema(t.InputSchema)
		_ = enc.Encode(t) // strings and valid JSON into a hash: cannot fail
	}
	return hex.EncodeToString(h.Sum(nil))
}

// canonicalSchema sorts the keys of objects. Numbers keep their original text.
func canonicalSchema(schema json.RawMessage) json.RawMessage {
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
