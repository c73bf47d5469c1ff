package voice

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/shown"
)

// The upstream's model also gets the tools of plug-ins and endpoints. They
// have names of fleetd's choice, in that conversation only.

// Programs are the plug-ins and endpoints whose tools the models of voice servers get.
type Programs interface {
	// OfferedToVoice returns the devices of those that are connected now, the most important
	// first, for a conversation's principal.
	OfferedToVoice(ctx context.Context, p fleet.Principal) ([]fleet.DeviceID, error)
	// OffersToVoice reports whether a device is one of those, or would be if it were connected.
	OffersToVoice(id fleet.DeviceID) bool
}

// Limits of the tools of programs. A voice server sends all tools to its model with each request;
// what a model's API refuses there would also take the device's tools away. The APIs accept names
// of 64 characters [A-Za-z0-9_-], descriptions of 1,024 characters and 128 functions, and the
// voice server adds its functions.
const (
	maxTools       = 64       // of the device and of programs; the device's are never left out
	maxToolBytes   = 48 << 10 // of these, in the list
	maxToolName    = 64
	maxDescription = 1024     // characters
	maxText        = 16 << 10 // of a result

	// maxAskingPrograms is how many calls of programs a conversation makes at a time: a program
	// that hangs leaves the rest of maxAsking to the device.
	maxAskingPrograms = maxAsking / 2
)

// An offer is a tool of a program under the name that the upstream knows.
type offer struct {
	name   string
	device fleet.DeviceID
	tool   string
	text   []byte // in the list
}

// offers are the tools of programs that a conversation listed.
type offers struct {
	list    []offer
	leftOut int
	why     string // of the first tool that was left out
}

func (o *offers) find(name string) (offer, bool) {
	i := slices.IndexFunc(o.list, func(f offer) bool { return f.name == name })
	if i < 0 {
		return offer{}, false
	}
	return o.list[i], true
}

func (o *offers) texts() []toolText {
	tools := make([]toolText, len(o.list))
	for i, f := range o.list {
		tools[i] = toolText{f.name, f.text}
	}
	return tools
}

func (o *offers) leave(device fleet.DeviceID, tool, why string) {
	if o.leftOut++; o.leftOut == 1 {
		o.why = string(device) + ", tool " + fleet.CleanText(tool, 80) + ": " + why
	}
}

// offerPrograms selects the tools of programs for a conversation whose device has the given tools.
// What it selects stays the same until the upstream lists the tools again.
func (c *conversation) offerPrograms(own []fleet.Tool) *offers {
	o := &offers{}
	if c.relay.o.Programs != nil {
		room := roomAfter(own)
		ctx, cancel := context.WithTimeout(c.life, c.relay.o.OfferTimeout)
		defer cancel()
		var units [][]offer
		programs, err := c.relay.o.Programs.OfferedToVoice(ctx, c.principal())
		if err != nil {
			c.relay.log.Warn("tools of programs not offered to a voice server", "device", c.device.ID, "err", err)
		}
		for _, id := range programs {
			_, tools, err := c.relay.o.Calls.Offered(ctx, c.principal(), id)
			if err != nil {
				c.relay.log.Warn("tools of a program not offered to a voice server", "device", id, "err", err)
				continue
			}
			units = append(units, offersOf(id, tools, o))
		}
		room.fill(units, o)
		c.relay.noteLeftOut(o)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.programs = o
	return o
}

// listed returns the tools of programs that the conversation listed.
func (c *conversation) listed() *offers {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.programs, &offers{})
}

// offersOf returns the tools that voice servers accept, without names yet.
func offersOf(id fleet.DeviceID, tools []fleet.Tool, o *offers) (list []offer) {
	for _, t := range tools {
		schema, why := plainSchema(t.InputSchema)
		if why == "" && strings.TrimFunc(plainName(t.Name), func(r rune) bool { return r == '_' || r == '-' }) == "" {
			why = "its name has no letter or digit"
		}
		if why != "" {
			o.leave(id, t.Name, why)
			continue
		}
		text, err := json.Marshal(listedTool{"", shorten(t.Description, maxDescription), schema})
		if err != nil || len(text)+maxToolName > maxPage {
			o.leave(id, t.Name, "it is too large for a page")
			continue
		}
		list = append(list, offer{device: id, tool: t.Name, text: text})
	}
	return list
}

// A room is what the device's own tools leave.
type room struct {
	tools, bytes int
	names        map[string]bool // taken, as a voice server writes them
}

func roomAfter(own []fleet.Tool) *room {
	r := &room{tools: maxTools - len(own), bytes: maxToolBytes, names: map[string]bool{}}
	for _, t := range own {
		r.bytes -= len(t.Name) + len(t.Description) + len(t.InputSchema)
		r.names[plainName(t.Name)] = true
	}
	return r
}

// fill selects tools while there is room: the first one of each unit, then the second one of each,
// and so on, so that a unit with many tools leaves room to the others.
func (r *room) fill(units [][]offer, o *offers) {
	taken := make([][]offer, len(units))
	for i, more := 0, true; more; i++ {
		more = false
		for u, list := range units {
			if i >= len(list) {
				continue
			}
			more = true
			f := list[i]
			if r.tools < 1 || r.bytes < len(f.text)+maxToolName {
				o.leave(f.device, f.tool, "the voice server's list is full")
				continue
			}
			f.name = r.name(f)
			f.text = bytes.Replace(f.text, []byte(`"name":""`), []byte(`"name":"`+f.name+`"`), 1)
			r.tools--
			r.bytes -= len(f.text)
			taken[u] = append(taken[u], f)
		}
	}
	o.list = slices.Concat(taken...)
}

// name returns a free name: that of the unit and that of the tool. A name that is too long, or
// taken, ends with part of a hash of both instead.
func (r *room) name(f offer) string {
	_, unit, _ := strings.Cut(string(f.device), ".")
	name := plainName(unit + "_" + f.tool)
	if c := name[0]; c >= '0' && c <= '9' || c == '-' {
		name = "_" + name // a function's name may have to begin with a letter or _
	}
	if len(name) > maxToolName || r.names[name] {
		sum := sha256.Sum256([]byte(string(f.device) + "\x00" + f.tool))
		hash := "_" + hex.EncodeToString(sum[:])
		short := name[:min(len(name), maxToolName-9)]
		for n := 9; ; n++ { // nine bytes are enough unless someone looks for a collision
			short = short[:min(len(short), maxToolName-n)]
			if name = short + hash[:n]; !r.names[name] {
				break
			}
		}
	}
	r.names[name] = true
	return name
}

// plainName replaces what a function's name may not contain, as voice servers do.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, name)
}

// plainSchema returns a schema that voice servers and their models' APIs accept, or why it cannot.
// xiaozhi-esp32-server passes on only type, properties and required; it accepts no other
// forms of them, and definitions next to them are lost. [handle_mcp_message, as above]
func plainSchema(raw json.RawMessage) (schema json.RawMessage, why string) {
	if len(raw) == 0 {
		raw = json.RawMessage(`{"type":"object"}`)
	}
	raw = shown.Schema(raw)
	var s struct {
		Type       string                     `json:"type"`
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required,omitempty"`
	}
	if json.Unmarshal(raw, &s) != nil || s.Type != "" && s.Type != "object" {
		return nil, "its input schema is not that of an object"
	}
	if bytes.Contains(raw, []byte(`"$ref"`)) || bytes.Contains(raw, []byte(`"$dynamicRef"`)) {
		return nil, "its input schema refers to definitions"
	}
	for _, p := range s.Properties {
		if !bytes.HasPrefix(bytes.TrimSpace(p), []byte("{")) {
			return nil, "its input schema has a property without a schema"
		}
	}
	s.Type = "object"
	if s.Properties == nil {
		s.Properties = map[string]json.RawMessage{}
	}
	schema, err := json.Marshal(s)
	if err != nil {
		return nil, "its input schema cannot be written"
	}
	return schema, ""
}

// shorten returns at most n characters.
func shorten(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}

// noteLeftOut logs which tools of programs the voice servers do not get, once for each change.
func (r *Relay) noteLeftOut(o *offers) {
	r.stats.leftOut.Store(int64(o.leftOut))
	r.mu.Lock()
	was := r.leftOut
	r.leftOut = o.why
	r.mu.Unlock()
	if o.why != "" && o.why != was {
		r.log.Warn("voice servers do not get all tools of plug-ins and endpoints", "left_out", o.leftOut, "first", o.why)
	}
}

var errNotOffered = fleet.Refuse(fleet.ErrForbidden, "voice_not_offered")

// request returns the call of a tool that the upstream names. done ends it.
func (c *conversation) request(name string, arguments json.RawMessage) (r call.Request, done func(), no *rpcError) {
	r = call.Request{Actor: c.principal(), Device: c.device.ID, Tool: name, Arguments: arguments}
	f, program := c.listed().find(name)
	if !program {
		return r, func() {}, nil
	}
	if !c.relay.o.Programs.OffersToVoice(f.device) {
		return r, nil, &rpcError{codeNotDone, c.relay.o.Texts.Error(errNotOffered)}
	}
	select {
	case c.askingPrograms <- struct{}{}:
	default:
		return r, nil, c.busy()
	}
	// A program's call ends with the upstream's wait: later the answer would not be heard.
	r.Device, r.Tool, r.Timeout = f.device, f.tool, c.relay.o.CallTimeout
	return r, func() { <-c.askingPrograms }, nil
}

// Spoken returns a program's result in the form that voice servers read: one text of a bounded
// length. Programs also answer with images, links and structured content.
func Spoken(result json.RawMessage) json.RawMessage {
	var r struct {
		Content []struct {
			Type, Text string
			Resource   struct{ Text string }
		}
		Structured json.RawMessage `json:"structuredContent"`
		IsError    bool
	}
	if json.Unmarshal(result, &r) != nil {
		return result
	}
	var texts []string
	for _, part := range r.Content {
		switch {
		case part.Type == "text":
			texts = append(texts, part.Text)
		case part.Type == "resource" && part.Resource.Text != "":
			texts = append(texts, part.Resource.Text)
		default:
			texts = append(texts, "["+fleet.CleanText(part.Type, 40)+"]") // which a voice cannot speak
		}
	}
	if len(texts) == 0 && len(r.Structured) > 0 {
		texts = []string{string(r.Structured)}
	}
	text := strings.Join(texts, "\n")
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	type content struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	out, _ := json.Marshal(struct { // texts: cannot fail
		Content []content `json:"content"`
		IsError bool      `json:"isError"`
	}{[]content{{"text", text}}, r.IsError})
	return out
}
