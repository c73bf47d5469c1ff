package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// A Scope narrows a principal: the devices on which it has its role, and the
// tools that it may call there.
type Scope struct {
	Filter Query // see [ParseScope]; the empty one covers every device
	// Rest is the role on devices that Filter does not cover, and in what concerns
	// no single device. "": such devices do not exist for the principal.
	Rest  Role
	Tools []string // patterns of tools that it may call; a trailing * is any ending; none: all tools
	// NoTools: it may call no tool at all, as a language model whose token names none.
	NoTools bool
}

// scopeFields are what a scope may ask of a device: what the device cannot
// change from one moment to the next, and the database need not be asked for.
var scopeFields = []string{"", "id", "name", "board", "chip", "tag"}

// ParseScope reads the filter of a scope: a query over id, name, board, chip and
// tag. Unlike in a list, retired devices are covered too: their records stay.
func ParseScope(text string) (Query, error) {
	q, err := ParseQuery(text)
	if err != nil {
		return Query{}, err
	}
	for _, t := range q.Terms {
		if !slices.Contains(scopeFields, t.Field) {
			return Query{}, Refuse(ErrInvalid, "invalid_scope_field", "field", t.Field).At("scope")
		}
	}
	return q, nil
}

// MaxScopeTools bounds the patterns of tools of a scope.
const MaxScopeTools = 50

// NewScope makes a scope of its texts; nil if they narrow nothing.
func NewScope(filter string, rest Role, tools []string) (*Scope, error) {
	q, err := ParseScope(filter)
	if err != nil {
		return nil, err
	}
	if rest != "" && !rest.Valid() {
		return nil, ErrUnknownRole(rest)
	}
	if len(tools) > MaxScopeTools {
		return nil, Refuse(ErrInvalid, "invalid_tools", "limit", MaxScopeTools).At("tools")
	}
	for _, p := range tools {
		if p == "" || len(p) > 200 || CleanText(p, 200) != p {
			return nil, Refuse(ErrInvalid, "invalid_tools.pattern", "value", p).At("tools")
		}
	}
	if q.Empty() && len(tools) == 0 {
		return nil, nil
	}
	return &Scope{Filter: q, Rest: rest, Tools: tools}, nil
}

// claimedFields are what a device says of itself. Board and chip are pinned when it is
// let in, and are its word until then.
var claimedFields = []string{"board", "chip", "version", "elf", "slot", "tool", "transport", "safe_mode", "core_dump"}

// Claims returns the fields of the query that rest on what devices say of themselves,
// each once: a device that lies chooses whether it fits.
func (q Query) Claims() (fields []string) {
	for _, t := range q.Terms {
		field := t.Field
		if field == "" {
			field = "board" // a word may be found there
		}
		if slices.Contains(claimedFields, field) && !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return fields
}

// NewTokenScope makes the scope of a token. A language model's that names no tools
// may call none: "*" is all. A program's that names none may call all.
func NewTokenScope(kind PrincipalKind, filter string, tools []string) (*Scope, error) {
	s, err := NewScope(filter, "", tools)
	if err == nil && kind.IsModel() && len(tools) == 0 {
		s = cmp.Or(s, &Scope{})
		s.NoTools = true
	}
	return s, err
}

// AllTools reports whether the scope names no tool in particular.
func (s *Scope) AllTools() bool {
	return s == nil || !s.NoTools && (len(s.Tools) == 0 || slices.Contains(s.Tools, "*"))
}

// Covers reports whether the device, in service or retired, meets every term of
// the query. The query is one of [ParseScope].
func (q Query) Covers(d Device) bool {
	_, ok := q.match(&d, nil, time.Time{})
	return ok
}

// AllowsTool reports whether the scope lets a principal call the tool. A nil
// scope allows all.
func (s *Scope) AllowsTool(tool string) bool {
	return s == nil || !s.NoTools && (len(s.Tools) == 0 || MatchTool(s.Tools, tool))
}

// MatchTool reports whether one of the patterns names the tool. A trailing *
// matches any ending; case counts, as it does for devices.
func MatchTool(patterns []string, tool string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, open := strings.CutSuffix(p, "*")
		return p == tool || open && strings.HasPrefix(tool, prefix)
	})
}

// SeesTool reports whether the tool exists for the principal: one that it may
// never call does not.
func (p Principal) SeesTool(t Tool) bool {
	return !(p.Kind.IsModel() && t.UserOnly()) && p.Scope.AllowsTool(t.Name)
}

// A ToolScope narrows what stores read of calls, their results and their pictures
// to those of the tools that a language model may call. Tools for people only are
// never among them.
type ToolScope struct {
	Patterns []string // nil: all tools; empty: none
}

// toolScope is nil if the principal reads of all tools: people and programs do,
// also where they may not call them.
func (p Principal) toolScope() *ToolScope {
	if !p.Kind.IsModel() {
		return nil
	}
	if p.Scope.AllTools() {
		return &ToolScope{}
	}
	return &ToolScope{Patterns: append([]string{}, p.Scope.Tools...)}
}

// ToolScopeOf returns what reads with this context are narrowed to, nil for all
// tools.
func ToolScopeOf(ctx context.Context) *ToolScope {
	t, _ := ctx.Value(toolScopeKey{}).(*ToolScope)
	return t
}

type (
	scopeKey     struct{}
	toolScopeKey struct{}
)

// WithScope returns a context in which stores find only what the principal may
// see: the rows of devices that its scope hides are left out, as if they did not
// exist, and so are, for a language model, calls of tools that it may never call,
// with all that came of them. Each door calls it once it knows who asks.
func WithScope(ctx context.Context, p Principal) context.Context {
	if t := p.toolScope(); t != nil {
		ctx = context.WithValue(ctx, toolScopeKey{}, t)
	}
	if !p.Hides() {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, &p.Scope.Filter)
}

// WithinFilter returns a context in which stores find what lies wholly within the
// principal's filter, also if it sees the rest.
func WithinFilter(ctx context.Context, p Principal) context.Context {
	if p.Scope == nil || p.Scope.Filter.Empty() {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, &p.Scope.Filter)
}

// MayOnDevice is [Principal.MayOn] for a device that has yet to be found. Where
// the scope does not matter, the act itself finds out whether it exists.
func (p Principal) MayOnDevice(ctx context.Context, find func(context.Context, DeviceID) (Device, error), id DeviceID,
	need Role, act string) error {
	if p.Scope == nil {
		return p.May(need, act)
	}
	d, err := find(ctx, id)
	if err != nil {
		return err
	}
	return p.MayOn(d, need, act)
}

// RoleOnAll is the principal's role on a collection of devices, such as the
// audience of a campaign: on each of them it has that role or a higher one. find
// reads the collection; where the context is narrowed to a filter, it finds only
// what lies wholly within that.
func (p Principal) RoleOnAll(ctx context.Context, find func(context.Context) error) (Role, error) {
	if p.Scope == nil || p.Scope.Filter.Empty() {
		return p.Role, nil
	}
	err := find(WithinFilter(ctx, p))
	switch {
	case err == nil:
		return p.Role, nil
	case !errors.Is(err, ErrNotFound):
		return "", err
	case p.Scope.Rest == "":
		return "", err
	}
	return p.Scope.Rest, nil
}

// MayOnAll returns nil if the principal may do to each device of a collection
// what needs role need; see [Principal.RoleOnAll].
func (p Principal) MayOnAll(ctx context.Context, find func(context.Context) error, need Role, act string) error {
	if p.Scope == nil {
		return p.May(need, act)
	}
	role, err := p.RoleOnAll(ctx, find)
	if err != nil {
		return err
	}
	return p.mayAs(role, need, act)
}

// WithoutScope returns a context for reads on behalf of fleetd itself, such as
// those that fill a cache which all principals share.
func WithoutScope(ctx context.Context) context.Context {
	if ToolScopeOf(ctx) != nil {
		ctx = context.WithValue(ctx, toolScopeKey{}, (*ToolScope)(nil))
	}
	if _, narrow := ScopeOf(ctx); !narrow {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, (*Query)(nil))
}

// ScopeOf returns the filter that reads with this context are narrowed to, and
// whether there is one. Stores add it to what they read of devices.
func ScopeOf(ctx context.Context) (Query, bool) {
	q, _ := ctx.Value(scopeKey{}).(*Query)
	if q == nil {
		return Query{}, false
	}
	return *q, true
}

// Hides reports whether some devices do not exist for the principal.
func (p Principal) Hides() bool {
	return p.Scope != nil && !p.Scope.Filter.Empty() && p.Scope.Rest == ""
}
