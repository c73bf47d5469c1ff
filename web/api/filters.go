package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerFilters() {
	register(a, operation{id: "list-filters", method: http.MethodGet, path: "/filters", role: fleet.RoleViewer, reach: access.Shared, models: fleet.ModelsMay,
		summary: "List saved filters", about: "By name."}, a.listFilters)
	register(a, operation{id: "create-filter", method: http.MethodPost, path: "/filters", role: fleet.RoleOperator, reach: access.Fleet, models: fleet.ModelsNever,
		created: true,
		summary: "Save a filter",
		about:   "A device query with a name; MCP clients reach its devices at /mcp/groups/{name}."}, a.createFilter)
	register(a, operation{id: "update-filter", method: http.MethodPatch, path: "/filters/{id}",
		role: fleet.RoleOperator, reach: access.Fleet, models: fleet.ModelsNever, noun: "filter",
		summary: "Change a saved filter", about: "Omitted fields stay as they are."}, a.updateFilter)
	register(a, operation{id: "delete-filter", method: http.MethodDelete, path: "/filters/{id}",
		role: fleet.RoleOperator, reach: access.Fleet, models: fleet.ModelsNever, noun: "filter",
		summary: "Delete a saved filter", about: "The devices stay."}, a.deleteFilter)
}

type filterView struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	Name      string    `json:"name" doc:"1 to 60 of a-z, 0-9 and -; unique"`
	Title     string    `json:"title" doc:"For people; may be empty"`
	Query     string    `json:"q" doc:"In the query language of devices"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
}

func filter(f fleet.Filter) filterView {
	return filterView{ID: f.ID, Name: f.Name, Title: f.Title, Query: f.Query, CreatedBy: f.CreatedBy,
		CreatedAt: utc(f.CreatedAt)}
}

func (a *api) listFilters(ctx context.Context, _ fleet.Principal, _ *struct{}) (*answer[list[filterView]], error) {
	all, err := a.Filters.Filters(ctx)
	if err != nil {
		return nil, err
	}
	return listOf(all, filter), nil
}

type createFilterInput struct {
	Body struct {
		Name  string `json:"name" minLength:"1" maxLength:"60"`
		Title string `json:"title,omitempty" maxLength:"120"`
		Query string `json:"q" minLength:"1" maxLength:"1024" doc:"In the query language of devices"`
	}
}

func (a *api) createFilter(ctx context.Context, by fleet.Principal, in *createFilterInput) (*answer[filterView],
	error) {
	f, err := a.Filters.Create(ctx, by, fleet.Filter{Name: in.Body.Name, Title: in.Body.Title, Query: in.Body.Query})
	if err != nil {
		return nil, err
	}
	return answerWith(filter(f)), nil
}

type updateFilterInput struct {
	IDPath
	Body struct {
		Name  *string `json:"name,omitempty" minLength:"1" maxLength:"60"`
		Title *string `json:"title,omitempty" maxLength:"120"`
		Query *string `json:"q,omitempty" minLength:"1" maxLength:"1024" doc:"In the query language of devices"`
	}
}

func (a *api) updateFilter(ctx context.Context, by fleet.Principal, in *updateFilterInput) (*answer[filterView],
	error) {
	f, err := a.Filters.Update(ctx, by, in.uuid(), fleet.FilterChange{Name: in.Body.Name, Title: in.Body.Title,
		Query: in.Body.Query})
	if err != nil {
		return nil, err
	}
	return answerWith(filter(f)), nil
}

func (a *api) deleteFilter(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Filters.Delete(ctx, by, in.uuid())
}
