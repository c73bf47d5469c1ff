package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"fleetd/fleet"
	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerLayouts() {
	register(a, operation{id: "get-image-layout", reach: access.Shared, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/images/{sha256}/layout",
		role: fleet.RoleViewer, noun: "layout",
		summary: "Show the other parts that a blank board needs"}, a.getLayout)
	register(a, operation{id: "put-image-layout", reach: access.Fleet, models: fleet.ModelsNever, heavy: heavy.Upload,
		method: http.MethodPut, path: "/images/{sha256}/layout",
		role: fleet.RoleOperator, noun: "image", streams: true,
		summary: "Add the other parts that a blank board needs",
		about: "multipart/form-data with the files of the image's build, each as \"file\": bootloader, partition table, initial otadata, and flasher_args.json if " +
			"there is one. It takes the place of a layout that is there."}, a.putLayout)
	form := &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	a.huma.OpenAPI().Paths["/images/{sha256}/layout"].Put.RequestBody = &huma.RequestBody{Required: true,
		Content: map[string]*huma.MediaType{
			"multipart/form-data": {Schema: &huma.Schema{Type: huma.TypeObject, Required: []string{"file"},
				Properties: map[string]*huma.Schema{"file": form}}}}}
}

// layoutView is the files of a blank board with their addresses.
type layoutView struct {
	FlashSize     int64          `json:"flash_size" doc:"Bytes that the bootloader was built for; 0 if it does not say"`
	Problem       string         `json:"problem" doc:"Why the parts of a merged binary cannot be used; empty if they can"`
	ProblemCode   string         `json:"problem_code" doc:"Code of problem; empty if there is none" example:"image_layout"`
	ProblemParams map[string]any `json:"problem_params" doc:"Parameters of the code"`
	Parts         []partView     `json:"parts" nullable:"false" doc:"By offset"`
	AddedBy       actorView      `json:"added_by"`
	AddedAt       time.Time      `json:"added_at"`
}

type partView struct {
	Kind   espimage.PartKind `json:"kind" enum:"bootloader,partition_table,otadata,app,data"`
	Label  string            `json:"label" doc:"Label of its partition; empty before the first partition"`
	Offset int64             `json:"offset" doc:"In flash"`
	Size   int64             `json:"size"`
	SHA256 string            `json:"sha256"`
}

func part(p firmware.ImagePart) partView { return partView(p) }

func shownLayout(l firmware.ImageLayout, err error) (*answer[layoutView], error) {
	if err != nil {
		return nil, err
	}
	v := layoutView{FlashSize: l.FlashSize, ProblemCode: l.Problem.Code, ProblemParams: paramsOf(l.Problem),
		Parts: viewed(l.Parts, part), AddedBy: actor(l.AddedBy), AddedAt: utc(l.AddedAt)}
	if l.Problem.Code != "" {
		v.Problem = i18n.Detail("error.code.", l.Problem)
	}
	return answerWith(v), nil
}

func (a *api) getLayout(ctx context.Context, _ fleet.Principal, in *ImagePath) (*answer[layoutView], error) {
	return shownLayout(a.Firmware.Layout(ctx, in.sha256()))
}

// layoutInput contains the request itself: its files are read as they arrive.
type layoutInput struct {
	ImagePath

	r *http.Request
	w http.ResponseWriter
}

// Resolve stores the request for the handler; it is not part of the document.
func (in *layoutInput) Resolve(ctx huma.Context) []error {
	in.r, in.w = humachi.Unwrap(ctx)
	return nil
}

func (a *api) putLayout(ctx context.Context, by fleet.Principal, in *layoutInput) (*answer[layoutView], error) {
	build, err := a.Firmware.NewBuild(by)
	if err != nil {
		return nil, err
	}
	defer build.Close()
	body := newUploadBody(in.w, in.r.Body, firmware.MaxImageBytes+formExtra)
	defer body.finish()
	in.r.Body = body
	err = readBuild(in.r, build)
	if p := body.fault(); p != nil {
		in.w.Header().Set("Connection", "close")
		return nil, p
	}
	if err != nil {
		return nil, err
	}
	return shownLayout(build.KeepFor(ctx, in.sha256()))
}

// readBuild reads the form's files as they arrive.
func readBuild(r *http.Request, build *firmware.Build) error {
	parts, err := r.MultipartReader()
	if err != nil {
		return noFiles()
	}
	for {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return noFiles()
		}
		if part.FormName() != "file" || part.FileName() == "" {
			continue
		}
		if err := build.Add(part.FileName(), part); err != nil {
			return err
		}
	}
	if build.Empty() {
		return noFiles()
	}
	return nil
}

func noFiles() error {
	return fleet.Refuse(fleet.ErrInvalid, "file_missing.parts").At("file")
}
