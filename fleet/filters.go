package fleet

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"golang.org/x/text/unicode/norm"
)

// MaxFilters is the maximum number of saved filters in a fleet.
const MaxFilters = 500

// A Filter is a named device query, for people and programs that use the same query
// repeatedly.
type Filter struct {
	ID        uuid.UUID
	Name      string // unique; 1 to 60 of a-z, 0-9 and -, with no - at either end
	Title     string // for people; may be empty
	Query     string // in the query language; never empty
	CreatedBy string
	CreatedAt time.Time
}

// FilterStore stores saved filters. It audits each change.
type FilterStore interface {
	Filters(ctx context.Context) ([]Filter, error) // by name
	Filter(ctx context.Context, id uuid.UUID) (Filter, error)
	FilterByName(ctx context.Context, name string) (Filter, error)
	// CreateFilter and UpdateFilter fail with [ErrConflict] if the name is taken.
	CreateFilter(ctx context.Context, by Principal, f Filter) error
	UpdateFilter(ctx context.Context, by Principal, f Filter) error
	DeleteFilter(ctx context.Context, by Principal, id uuid.UUID) error
}

// Filters manages saved filters. A filter's query may reveal devices and tags. Therefore, for
// a principal that does not see every device, a filter exists only if its query repeats the
// whole scope; such a filter can find nothing outside the scope.
type Filters struct {
	store FilterStore
	now   func() time.Time
}

// NewFilters returns the service.
func NewFilters(store FilterStore) *Filters {
	return &Filters{store: store, now: func() time.Time { return time.Now().UTC() }}
}

var filterName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?$`)

// Filters returns the filters that exist for the principal of the context, by name.
func (s *Filters) Filters(ctx context.Context) ([]Filter, error) {
	all, err := s.store.Filters(ctx)
	return slices.DeleteFunc(all, func(f Filter) bool { return !f.existsFor(ctx) }), err
}

// existsFor reports whether the query contains each term of the context's scope.
func (f Filter) existsFor(ctx context.Context) bool {
	scope, narrow := ScopeOf(ctx)
	if !narrow {
		return true
	}
	q, err := ParseQuery(f.Query)
	return err == nil && !slices.ContainsFunc(scope.Terms, func(t Term) bool {
		return !slices.ContainsFunc(q.Terms, func(own Term) bool { return reflect.DeepEqual(own, t) })
	})
}

// FilterByName returns the filter with this name, or [ErrNotFound]. It does not query the
// store for a text that cannot be a name.
func (s *Filters) FilterByName(ctx context.Context, name string) (Filter, error) {
	if !filterName.MatchString(name) {
		return Filter{}, errUnknownFilter(name)
	}
	f, err := s.store.FilterByName(ctx, name)
	if errors.Is(err, ErrNotFound) || err == nil && !f.existsFor(ctx) {
		return Filter{}, errUnknownFilter(name)
	}
	return f, err
}

func errUnknownFilter(name string) error {
	return Refuse(ErrNotFound, "unknown_filter", "name", name)
}

// A FilterChange changes a filter; nil fields stay unchanged.
type FilterChange struct{ Name, Title, Query *string }

// Create saves a filter. It requires an operator of the whole fleet. If the filter has no
// name, Create derives one from its title.
func (s *Filters) Create(ctx context.Context, by Principal, f Filter) (Filter, error) {
	if err := by.May(RoleOperator, "change_filter"); err != nil {
		return Filter{}, err
	}
	all, err := s.store.Filters(ctx)
	if err != nil {
		return Filter{}, err
	}
	if f.Name == "" && f.Title != "" {
		f.Name = f.nameAmong(all)
	}
	if err := f.clean(); err != nil {
		return Filter{}, err
	}
	if len(all) >= MaxFilters {
		return Filter{}, Refuse(ErrConflict, "too_many_filters", "limit", MaxFilters)
	}
	f.ID, f.CreatedBy, f.CreatedAt = uuid.Must(uuid.NewV7()), by.Name, s.now()
	return f, s.store.CreateFilter(ctx, by, f)
}

// Update changes a filter.
func (s *Filters) Update(ctx context.Context, by Principal, id uuid.UUID, c FilterChange) (Filter, error) {
	if err := by.May(RoleOperator, "change_filter"); err != nil {
		return Filter{}, err
	}
	f, err := s.store.Filter(ctx, id)
	if err != nil {
		return Filter{}, err
	}
	for to, from := range map[*string]*string{&f.Name: c.Name, &f.Title: c.Title, &f.Query: c.Query} {
		if from != nil {
			*to = *from
		}
	}
	if err := f.clean(); err != nil {
		return Filter{}, err
	}
	return f, s.store.UpdateFilter(ctx, by, f)
}

// Delete removes a filter. It does not affect devices.
func (s *Filters) Delete(ctx context.Context, by Principal, id uuid.UUID) error {
	if err := by.May(RoleOperator, "change_filter"); err != nil {
		return err
	}
	return s.store.DeleteFilter(ctx, by, id)
}

// nameAmong derives a name that none of the others has, from the Latin letters and digits of
// the title or, if the title has none, of the query.
func (f Filter) nameAmong(others []Filter) string {
	base := cmp.Or(latinName(f.Title), latinName(f.Query), "filter")
	taken := func(name string) bool {
		return slices.ContainsFunc(others, func(o Filter) bool { return o.Name == name })
	}
	name := base
	for n := 2; taken(name); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name
}

// latinName reduces a text to a name: letters without accents, digits, and - for everything
// else. It is short enough to append a number.
func latinName(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(norm.NFKD.String(text)) {
		switch {
		case unicode.Is(unicode.Mn, r): // the accent of the preceding letter
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
		if b.Len() == 56 {
			break
		}
	}
	return strings.Trim(b.String(), "-")
}

func (f *Filter) clean() (err error) {
	if !filterName.MatchString(f.Name) {
		return Refuse(ErrInvalid, "invalid_name.filter", "value", f.Name).At("name")
	}
	if f.Title, err = CleanLine("title", f.Title, MaxNameLength); err != nil {
		return err
	}
	f.Query = strings.TrimSpace(f.Query)
	q, err := ParseQuery(f.Query)
	if err != nil {
		return err
	}
	if q.Empty() {
		return Refuse(ErrInvalid, "invalid_query.missing").At("q")
	}
	return nil
}
