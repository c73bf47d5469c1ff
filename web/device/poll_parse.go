package device

import (
	"encoding/json"
	"strings"
)

// Stock firmware builds its boot poll without escaping (protocol 1.3). A Wi-Fi name or carrier with
// a quote or a backslash makes the text invalid, or ends its string and adds members. In the first
// case encoding/json returns nothing; in the second it uses the last of several members with the
// same name. Polls therefore have a parser without these two weaknesses.

// parseBody returns the members of the object in raw. If ok is false, raw is not a JSON object or
// repeats a member, and the result has only the members before any text that others chose.
func parseBody(raw []byte) (members facts, ok bool) {
	p := bodyParser{raw: raw}
	if v, whole := p.value(0); whole {
		m, isObject := v.(map[string]any)
		if p.space(); isObject && p.at == len(raw) {
			return m, true
		}
	}
	return salvage(raw), false
}

// salvage reads the members before the broken one. Of board, which contains names that others
// chose, it reads only the first members, which the build fixed; in the rest, the place where the
// device's own text resumes is unknown.
func salvage(raw []byte) facts {
	p := bodyParser{raw: raw}
	kept := make(facts)
	for more := p.accept('{'); more; {
		key, ok := p.key()
		if _, repeated := kept[key]; !ok || repeated {
			break
		}
		if key == "board" {
			if board := p.boardNames(); len(board) > 0 {
				kept[key] = board
			}
			break
		}
		value, ok := p.value(1)
		if more = p.accept(','); !ok || !more && !p.accept('}') {
			break
		}
		kept[key] = value
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// boardNames reads the fields of the member board that the build fixed.
func (p *bodyParser) boardNames() map[string]any {
	names := make(map[string]any)
	for more := p.accept('{'); more; {
		key, ok := p.key()
		if !ok || key != "type" && key != "name" && key != "manufacturer" {
			break
		}
		_, repeated := names[key]
		value, ok := p.text()
		if more = p.accept(','); !ok || repeated || !more && !p.accept('}') {
			break
		}
		names[key] = value
	}
	return names
}

// maxNesting bounds the parser's recursion.
const maxNesting = 1000

// A bodyParser reads JSON from at on, into the types of encoding/json with [json.Number]. Its
// methods report whether they found the requested element.
type bodyParser struct {
	raw []byte
	at  int
}

func (p *bodyParser) value(depth int) (any, bool) {
	p.space()
	if p.at == len(p.raw) || depth > maxNesting {
		return nil, false
	}
	switch c := p.raw[p.at]; c {
	case '{':
		p.at++
		return p.object(depth)
	case '[':
		p.at++
		return p.array(depth)
	case '"':
		return p.text()
	case 't':
		return true, p.literal("true")
	case 'f':
		return false, p.literal("false")
	case 'n':
		return nil, p.literal("null")
	default:
		return p.number()
	}
}

func (p *bodyParser) object(depth int) (any, bool) {
	m := make(map[string]any)
	if p.accept('}') {
		return m, true
	}
	for {
		key, ok := p.key()
		if _, repeated := m[key]; !ok || repeated {
			return nil, false
		}
		if m[key], ok = p.value(depth + 1); !ok {
			return nil, false
		}
		if !p.accept(',') {
			return m, p.accept('}')
		}
	}
}

func (p *bodyParser) array(depth int) (any, bool) {
	var all []any
	if p.accept(']') {
		return all, true
	}
	for {
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		all = append(all, v)
		if !p.accept(',') {
			return all, p.accept(']')
		}
	}
}

func (p *bodyParser) key() (string, bool) {
	key, ok := p.text()
	return key, ok && p.accept(':')
}

// text reads a string. It replaces broken UTF-8, as encoding/json does.
func (p *bodyParser) text() (string, bool) {
	if !p.accept('"') {
		return "", false
	}
	for i, plain := p.at, true; i < len(p.raw); i++ {
		switch c := p.raw[i]; {
		case c == '"' && plain:
			s := string(p.raw[p.at:i])
			p.at = i + 1
			return s, true
		case c == '"':
			var s string
			err := json.Unmarshal(p.raw[p.at-1:i+1], &s)
			p.at = i + 1
			return s, err == nil
		case c < ' ':
			return "", false
		case c == '\\':
			plain = false
			i++
		case c >= 0x80:
			plain = false
		}
	}
	return "", false
}

func (p *bodyParser) number() (any, bool) {
	start := p.at
	for p.at < len(p.raw) && strings.IndexByte("+-.0123456789Ee", p.raw[p.at]) >= 0 {
		p.at++
	}
	n := p.raw[start:p.at]
	for _, c := range n {
		if c < '0' || c > '9' || n[0] == '0' && len(n) > 1 {
			return json.Number(n), json.Valid(n) // not a plain integer
		}
	}
	return json.Number(n), len(n) > 0
}

func (p *bodyParser) literal(s string) bool {
	if !strings.HasPrefix(string(p.raw[p.at:min(p.at+len(s), len(p.raw))]), s) {
		return false
	}
	p.at += len(s)
	return true
}

// accept reads c after any white space.
func (p *bodyParser) accept(c byte) bool {
	p.space()
	if p.at < len(p.raw) && p.raw[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *bodyParser) space() {
	for p.at < len(p.raw) && strings.IndexByte(" \t\r\n", p.raw[p.at]) >= 0 {
		p.at++
	}
}
