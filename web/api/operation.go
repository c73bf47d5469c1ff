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
	role    fleet.Role // the least that may
	reach   access.Reach
	models  fleet.ForModels // whether a language model may
	heavy   heavy.Work      // what it costs; each with a large body or many rows has one
	summary string
	about   string // more, for the document
	noun    string // what the request names, and may not exist
	created bool   // answers 201
	body    int64  // most bytes of its body; 0 takes maxBody
	picture bool   // takes a form with a picture in place of its body, too
	streams bool   // reads its body itself, as it comes

	usual func(guarded) guarded // answers requests in the usual form, and hands over the rest; may be nil

	more func(*huma.Operation) // adds to the document what the types do not say
}

// What the guard finds in huma's metadata of an operation.
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

// register makes an operation part of the router and of the document.
func register[I, O any](a *api, op operation, handle func(context.Context, fleet.Principal, *I) (*O, error)) {
	huma.Register(a.huma, op.describe(), func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, principalOf(ctx).actor, in)
		if err != nil {
			return nil, a.problemOf(ctx, err, op.noun, pathID(in))
		}
		return out, nil
	})
}

// modelsExtension is where the document says whether a language model may.
const modelsExtension = "x-fleetd-models"

// modelNotes are what the description says of it.
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

// adapter hands huma's operations to the router, each behind the guard.
type adapter struct{ *api }

func (a adapter) Handle(op *huma.Operation, handler func(huma.Context)) {
	a.router.Method(op.Method, op.Path, a.guard(op, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(humachi.NewContext(op, r, w))
	})))
}

func (a adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.router.ServeHTTP(w, r) }

// identified is an input that names one thing in its path.
type identified interface{ pathID() string }

func pathID(in any) string {
	if i, ok := in.(identified); ok {
		return i.pathID()
	}
	return ""
}

// answer is an output that is nothing but its body.
type answer[T any] struct{ Body T }

func answerWith[T any](v T) *answer[T] { return &answer[T]{v} }

// empty is an output without a body.
type empty struct{}

// list is one page of a list.
type list[T any] struct {
	Items []T     `json:"items" nullable:"false"`
	Next  *string `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
}

// listOf turns what the domain lists into what the contract shows.
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

// Paging is how every paged list is asked for.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"500" default:"50" doc:"Maximum number of items on a page"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"next_cursor of the previous page"`
}

// utc is a time as the contract shows it, as precise as the store keeps it.
func utc(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

func utcOrNil(t *time.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	return ptr(utc(*t))
}

func ptr[T any](v T) *T { return &v }
