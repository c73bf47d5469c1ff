package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/redaction"
	"fleetd/web/access"
)

func (a *api) registerRedaction() {
	const path, one = "/redaction/rules", "/redaction/rules/{id}"
	register(a, operation{id: "list-redaction-rules", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path, role: fleet.RoleAdmin,
		summary: "List the rules that keep values in arguments out of the records"}, a.listRedactions)
	register(a, operation{id: "get-redaction-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: one, role: fleet.RoleAdmin,
		noun: "redaction", summary: "A redaction rule"}, a.getRedaction)
	register(a, operation{id: "create-redaction-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: path, role: fleet.RoleAdmin, created: true,
		summary: "Store values at a path in arguments as digests",
		about: "Applies to every call that begins after the answer, and not to older records. Devices get the true values. " +
			"Arguments that cannot be searched, because they are nested too deeply or have more than 100 values under rules, are replaced as a whole."},
		a.createRedaction)
	register(a, operation{id: "update-redaction-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: one, role: fleet.RoleAdmin,
		noun: "redaction", summary: "Change a redaction rule"}, a.updateRedaction)
	register(a, operation{id: "delete-redaction-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: one, role: fleet.RoleAdmin,
		noun: "redaction", summary: "Delete a redaction rule; later calls are stored with their values"}, a.deleteRedaction)
	register(a, operation{id: "digest-value", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: "/redaction/digest", role: fleet.RoleAdmin,
		summary: "The digest of a value, to search calls for",
		about:   "The value is neither stored nor logged. Equal values have equal digests, however their JSON is written."},
		a.digestValue)
}

// RedactionView is a redaction rule.
type RedactionView struct {
	ID        uuid.UUID `json:"id" format:"uuid"`
	Tool      string    `json:"tool" doc:"Name of the tool, or a beginning followed by *"`
	Path      string    `json:"path" doc:"JSONPath into the arguments"`
	Note      string    `json:"note"`
	Revision  int64     `json:"revision" doc:"Every change increments it"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedBy string    `json:"updated_by"`
	UpdatedAt time.Time `json:"updated_at"`
}

func redactionView(r redaction.Rule) RedactionView {
	return RedactionView{ID: r.ID, Tool: r.Tool, Path: r.Path, Note: r.Note, Revision: r.Revision, CreatedBy: r.CreatedBy,
		CreatedAt: utc(r.CreatedAt), UpdatedBy: r.UpdatedBy, UpdatedAt: utc(r.UpdatedAt)}
}

func (a *api) listRedactions(_ context.Context, by fleet.Principal, _ *struct{}) (*answer[list[RedactionView]], error) {
	rules, err := a.Redaction.List(by)
	if err != nil {
		return nil, err
	}
	return listOf(rules, redactionView), nil
}

func (a *api) getRedaction(_ context.Context, by fleet.Principal, in *IDPath) (*answer[RedactionView], error) {
	r, err := a.Redaction.Get(by, in.uuid())
	if err != nil {
		return nil, err
	}
	return answerWith(redactionView(r)), nil
}

type createRedactionInput struct {
	Body struct {
		Tool string `json:"tool" minLength:"1" maxLength:"200" doc:"Name of the tool, or a beginning followed by *, such as self.wifi.*"`
		Path string `json:"path" minLength:"1" maxLength:"200" doc:"JSONPath into the arguments with the steps .name, ['name'], [n], [*] and ..name, such as $.password; names match in any case"`
		Note string `json:"note,omitempty" maxLength:"200"`
	}
}

func (a *api) createRedaction(ctx context.Context, by fleet.Principal, in *createRedactionInput) (
	*answer[RedactionView], error) {
	r, err := a.Redaction.Create(ctx, by, redaction.Rule{Tool: in.Body.Tool, Path: in.Body.Path, Note: in.Body.Note})
	if err != nil {
		return nil, err
	}
	return answerWith(redactionView(r)), nil
}

type updateRedactionInput struct {
	IDPath
	Body struct {
		Tool     *string `json:"tool,omitempty" maxLength:"200"`
		Path     *string `json:"path,omitempty" maxLength:"200"`
		Note     *string `json:"note,omitempty" maxLength:"200"`
		Revision int64   `json:"revision,omitempty" minimum:"0" doc:"Revision on which the change is based; nothing changes if it differs now. 0: any"`
	}
}

func (a *api) updateRedaction(ctx context.Context, by fleet.Principal, in *updateRedactionInput) (
	*answer[RedactionView], error) {
	r, err := a.Redaction.Update(ctx, by, in.uuid(), redaction.Change{Tool: in.Body.Tool, Path: in.Body.Path,
		Note: in.Body.Note, Revision: in.Body.Revision})
	if err != nil {
		return nil, err
	}
	return answerWith(redactionView(r)), nil
}

type deleteRedactionInput struct {
	IDPath
	Revision int64 `query:"revision" minimum:"0" doc:"Revision on which the removal is based; nothing is removed if it differs now. 0: any"`
}

func (a *api) deleteRedaction(ctx context.Context, by fleet.Principal, in *deleteRedactionInput) (*empty, error) {
	return &empty{}, a.Redaction.Delete(ctx, by, in.uuid(), in.Revision)
}

type digestValueInput struct {
	Body struct {
		Value json.RawMessage `json:"value" doc:"Any JSON value"`
	}
}

type digestView struct {
	Digest string `json:"digest" doc:"For the filter digest of the list of calls"`
}

func (a *api) digestValue(_ context.Context, by fleet.Principal, in *digestValueInput) (*answer[digestView], error) {
	digest, err := a.Redaction.Digest(by, in.Body.Value)
	if err != nil {
		return nil, err
	}
	return answerWith(digestView{digest}), nil
}
