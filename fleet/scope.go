package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"
)

// A Scope narrows a principal to the devices on which it has its role and to the tools that
// it may call there.
type Scope struct {
	Filter Query // see [ParseScope]; an empty filter covers every device
	// Rest is the role on devices outside Filter and in matters of no single device. "" means
	// that such devices do not exist for the principal.
	Rest  Role
	Tools []string // patterns of tools that it may call; a trailing * matches any ending; none means all
	// NoTools means that it may call no tool, like a language model whose token names none.
	NoTools bool
}

// scopeFields are the fields that a scope may use: those that a device cannot change from one
// moment to the next and that need no database query.
var scopeFields = []string{"", "id", "name", "board", "chip", "kind", "tag"}

// ParseScope parses the filter of a scope: a query over id, name, board, chip, kind and tag.
// Unlike a list's query, it also covers retired devices, because their records remain.
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

// MaxScopeTools is the maximum number of tool patterns in a scope.
const MaxScopeTools = 50

// NewScope returns a scope from its texts; nil if they narrow nothing.
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

// claimedFields are the fields that devices report about themselves. Board and chip are
// pinned when the device is enrolled; before that they are only claims.
var claimedFields = []string{"board", "chip", "version", "elf", "slot", "tool", "transport", "safe_mode", "core_dump",
	"crashed"}

// Claims returns the query's fields that depend on the devices' own reports, without
// duplicates. A lying device controls whether such a query matches it.
func (q Query) Claims() (fields []string) {
	for _, t := range q.Terms {
		field := t.Field
		if field == "" {
			field = "board" // a search word also searches the board
		}
		if slices.Contains(claimedFields, field) && !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return fields
}

// NewTokenScope returns the scope of a token. A language model whose token names no tools may
// call none, and "*" means all. A program whose token names none may call all.
func NewTokenScope(kind PrincipalKind, filter string, tools []string) (*Scope, error) {
	s, err := NewScope(filter, "", tools)
	if err == nil && kind.IsModel() && len(tools) == 0 {
		s = cmp.Or(s, &Scope{})
		s.NoTools = true
	}
	return s, err
}

// AllTools reports whether the scope allows every tool.
func (s *Scope) AllTools() bool {
	return s == nil || !s.NoTools && (len(s.Tools) == 0 || slices.Contains(s.Tools, "*"))
}

// Covers reports whether the device, in service or retired, matches every term of the query,
// which must come from [ParseScope].
func (q Query) Covers(d Device) bool {
	_, ok := q.match(&d, nil, time.Time{})
	return ok
}

// AllowsTool reports whether the scope allows the tool. A nil scope allows every tool.
func (s *Scope) AllowsTool(tool string) bool {
	return s == nil || !s.NoTools && (len(s.Tools) == 0 || MatchTool(s.Tools, tool))
}

// MatchTool reports whether one of the patterns matches the tool. A trailing * matches any
// ending. Case matters, as it does for devices.
func MatchTool(patterns []string, tool string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, open := strings.CutSuffix(p, "*")
		return p == tool || open && strings.HasPrefix(tool, prefix)
	})
}

// SeesTool reports whether the tool exists for the principal. A tool that it may never call
// does not.
func (p Principal) SeesTool(t Tool) bool {
	return !(p.Kind.IsModel() && t.UserOnly()) && p.Scope.AllowsTool(t.Name)
}

// A ToolScope narrows reads of calls, results and pictures to those of the tools that a
// language model may call. It never includes tools for people only.
type ToolScope struct {
	Patterns []string // nil: all tools; empty: none
}

// toolScope returns nil if the principal may read about all tools. People and programs may,
// even about tools that they may not call.
func (p Principal) toolScope() *ToolScope {
	if !p.Kind.IsModel() {
		return nil
	}
	if p.Scope.AllTools() {
		return &ToolScope{}
	}
	return &ToolScope{Patterns: append([]string{}, p.Scope.Tools...)}
}

// ToolScopeOf returns the tools to which reads with this context are narrowed, nil for all
// tools.
func ToolScopeOf(ctx context.Context) *ToolScope {
	t, _ := ctx.Value(toolScopeKey{}).(*ToolScope)
	return t
}

type (
	scopeKey     struct{}
	toolScopeKey struct{}
)

// WithScope returns a context in which stores find only what the principal may see. Reads
// omit the rows of devices that its scope hides. For a language model they also omit calls of
// tools that it may never call, with all their results. Each door calls it after it has
// authenticated the caller.
func WithScope(ctx context.Context, p Principal) context.Context {
	if t := p.toolScope(); t != nil {
		ctx = context.WithValue(ctx, toolScopeKey{}, t)
	}
	if !p.Hides() {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, &p.Scope.Filter)
}

// WithinFilter returns a context in which stores find only what lies wholly within the
// principal's filter, even if the principal sees the rest.
func WithinFilter(ctx context.Context, p Principal) context.Context {
	if p.Scope == nil || p.Scope.Filter.Empty() {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, &p.Scope.Filter)
}

// MayOnDevice is [Principal.MayOn] for a device that must first be found. If the scope does
// not matter, it skips the lookup; the act itself reports a missing device.
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

// RoleOnAll returns the role that the principal has at least on each device of a collection,
// such as the audience of a campaign. find reads the collection. If the context is narrowed
// to a filter, find succeeds only if the collection lies wholly within it.
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

// MayOnAll returns nil if the principal may do an act that needs role need on each device of
// a collection; see [Principal.RoleOnAll].
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

// WithoutScope returns a context for reads on behalf of fleetd itself, such as those that
// fill a cache shared by all principals.
func WithoutScope(ctx context.Context) context.Context {
	if ToolScopeOf(ctx) != nil {
		ctx = context.WithValue(ctx, toolScopeKey{}, (*ToolScope)(nil))
	}
	if _, narrow := ScopeOf(ctx); !narrow {
		return ctx
	}
	return context.WithValue(ctx, scopeKey{}, (*Query)(nil))
}

// ScopeOf returns the filter to which reads with this context are narrowed, and whether there
// is one. Stores add it to their queries about devices.
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
