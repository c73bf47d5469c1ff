package ui

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// A node is one value of a JSON text, for a foldable tree in the order of the text.
type node struct {
	Key      string
	HasKey   bool
	Kind     string // "object", "array", "string", "number", "true", "false", "null", "more"
	Text     string // of a leaf
	Children []node
}

// Limits of a tree: the text of a device must not become an endless page.
const (
	treeNodes = 2000
	treeDepth = 32
)

// parseTree reads JSON with an object or an array at the top. Other values, and broken JSON, are
// better shown as text.
func parseTree(text string) (node, bool) {
	trimmed := strings.TrimSpace(text)
	if trimmed == "" || trimmed[0] != '{' && trimmed[0] != '[' || !json.Valid([]byte(trimmed)) {
		return node{}, false
	}
	p := treeParser{d: json.NewDecoder(strings.NewReader(trimmed)), left: treeNodes}
	p.d.UseNumber()
	return p.value(0), true
}

type treeParser struct {
	d    *json.Decoder
	left int
}

// value reads the next value; the text has been validated.
func (p *treeParser) value(depth int) node {
	p.left--
	token, err := p.d.Token()
	if err != nil {
		return node{Kind: "more"}
	}
	switch v := token.(type) {
	case json.Delim:
		n := node{Kind: "object"}
		if v == '[' {
			n.Kind = "array"
		}
		p.children(&n, depth)
		return n
	case string:
		return node{Kind: "string", Text: v}
	case json.Number:
		return node{Kind: "number", Text: v.String()}
	case bool:
		if v {
			return node{Kind: "true", Text: "true"}
		}
		return node{Kind: "false", Text: "false"}
	}
	return node{Kind: "null", Text: "null"}
}

func (p *treeParser) children(n *node, depth int) {
	for p.d.More() {
		var child node
		key := ""
		if n.Kind == "object" {
			token, _ := p.d.Token()
			key, _ = token.(string)
		}
		if p.left <= 0 || depth >= treeDepth {
			var skip json.RawMessage
			_ = p.d.Decode(&skip)
			child = node{Kind: "more"}
			if len(n.Children) > 0 && n.Children[len(n.Children)-1].Kind == "more" {
				continue
			}
		} else {
			child = p.value(depth + 1)
		}
		child.Key, child.HasKey = key, n.Kind == "object" && child.Kind != "more"
		n.Children = append(n.Children, child)
	}
	_, _ = p.d.Token() // the closing bracket
}

// indent formats JSON for reading; it returns other text unchanged.
func indent(raw []byte) string {
	var b bytes.Buffer
	if json.Indent(&b, raw, "", "  ") != nil {
		return string(raw)
	}
	return b.String()
}

// treeSize returns the kind and length of a folded value: {3}, [12].
func treeSize(n node) string {
	if n.Kind == "array" {
		return "[" + strconv.Itoa(len(n.Children)) + "]"
	}
	return "{" + strconv.Itoa(len(n.Children)) + "}"
}
