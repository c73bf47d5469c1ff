package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"fleetd/fleet"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

// An operation is one row of the contract.
type operation struct {
	id      string
	method  string
	path    string
	role    fleet.Role // the minimum role
	reach   access.Reach
	models  fleet.ForModels // whether a language model may use it
	heavy   heavy.Work      // its cost; required if it has a large body or many rows
	summary string
	about   string // additional description for the document
	noun    string // the object in the path, which may not exist
	created bool   // responds with 201
	body    int64  // maximum bytes of its body; 0 means maxBody
	picture bool   // also accepts a form with a picture instead of its body
	streams bool   // reads its body itself, as it arrives

	usual func(guarded) guarded // serves requests in the usual form, and passes on the rest; may be nil

	more func(*huma.Operation) // adds details to the document that the types do not express
}

// Keys of the guard's data in huma's metadata of an operation.
const (
	roleKey    = "role"
	reachKey   = "reach"
	modelsKey  = "models"
	heavyKey   = "heavy"
	nounKey    = "noun"
	streamsKey = "streams"
	pictureKey = "picture"
	usualKey   = "usual"
)

// register adds an operation to the router and to the document.
func register[I, O any](a *api, op operation, handle func(context.Context, fleet.Principal, *I) (*O, error)) {
	huma.Register(a.huma, op.describe(), func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, principalOf(ctx).actor, in)
		if err != nil {
			return nil, a.problemOf(ctx, err, op.noun, pathID(in))
		}
		return out, nil
	})
}

// modelsExtension is the extension in the document that states whether a language model may use an
// operation.
const modelsExtension = "x-fleetd-models"

// modelNotes are the descriptions of that.
var modelNotes = map[fleet.ForModels]string{
	fleet.ModelsOwn:   " A language model may do it only with what it made itself.",
	fleet.ModelsNever: " Not for language models: they are refused with person_needed.",
}

// describe returns the operation as huma's type.
func (op operation) describe() huma.Operation {
	h := huma.Operation{OperationID: op.id, Method: op.method, Path: op.path, Summary: op.summary,
		Tags:        []string{strings.Split(op.path, "/")[1]},
		Description: strings.TrimSpace(op.about + "\n\nNeeds the role " + string(op.role) + "." + modelNotes[op.models]),
		Security:    []map[string][]string{{"token": {string(op.role)}}},
		Errors:      op.failures(),
		Metadata: map[string]any{roleKey: op.role, reachKey: op.reach, modelsKey: op.models, heavyKey: op.heavy,
			nounKey: op.noun, streamsKey: op.streams, pictureKey: op.picture, usualKey: op.usual},
		Extensions:      map[string]any{modelsExtension: string(op.models)},
		BodyReadTimeout: -1, // the guard has read the body
		MaxBodyBytes:    cmp.Or(op.body, maxBody) + 1,
	}
	if op.created {
		h.DefaultStatus = http.StatusCreated
	}
	if op.method == http.MethodPost && !op.streams {
		h.Parameters = []*huma.Param{{Name: "Idempotency-Key", In: "header",
			Description: "Repeated with the same key, the request is answered and not acted on again.",
			Schema:      &huma.Schema{Type: huma.TypeString, MaxLength: ptr(maxKey), MinLength: ptr(1)}}}
	}
	if op.more != nil {
		op.more(&h)
	}
	return h
}

// failures lists the statuses that the operation's problems may have.
func (op operation) failures() []int {
	list := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable}
	if op.noun != "" {
		list = append(list, http.StatusNotFound)
	}
	if op.method != http.MethodGet {
		list = append(list, http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType)
	}
	return list
}

// adapter adds huma's operations to the router, each behind the guard.
type adapter struct{ *api }

func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	a.router.Method(op.Method, op.Path, a.guard(op, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(humachi.NewContext(op, r, w))
	})))
}

func (a adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// identified is an input that names one object in its path.
type identified interface{ pathID() string }

func pathID(in any) string {
	if i, ok := in.(identified); ok {
		return i.pathID()
	}
	return ""
}

// answer is an output with nothing but a body.
type answer[T any] struct{ Body T }

func answerWith[T any](v T) *answer[T] { return &answer[T]{v} }

// empty is an output without a body.
type empty struct{}

// list is one page of a list.
type list[T any] struct {
	Items []T     `json:"items" nullable:"false"`
	Next  *string `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
}

// listOf converts a list of the domain into a list of the contract.
func listOf[D, V any](items []D, view func(D) V) *answer[list[V]] {
	l := list[V]{Items: make([]V, len(items))}
	for i, item := range items {
		l.Items[i] = view(item)
	}
	return &answer[list[V]]{l}
}

func pageOf[D, V any](p fleet.Page[D], view func(D) V) *answer[list[V]] {
	l := listOf(p.Items, view)
	if p.Next != "" {
		l.Body.Next = &p.Next
	}
	return l
}

// Paging is the input of every paged list.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Maximum number of items on a page"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"next_cursor of the previous page"`
}

// utc returns a time as in the contract, with the precision of the store.
func utc(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func utcOrNil(t *time.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	return ptr(utc(*t))
}

func ptr[T any](v T) *T { return &v }
