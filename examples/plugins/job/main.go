// Command job is a plug-in with a tool that takes a while: run_job.
//
// It shows what a tool sends while it runs, and how it stops early. Progress
// notifications go to a client that put a progress token into its request, and log
// messages to a client that set a log level. The SDK cancels the handler's context
// when the client cancels the request, or when the session ends.
//
// MCP deprecates log messages since its version 2026-07-28: what only the
// administrator of the plug-in reads belongs on standard error.
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type jobIn struct {
	Steps   int     `json:"steps,omitempty" jsonschema:"number of steps; 10 by default"`
	Seconds float64 `json:"seconds,omitempty" jsonschema:"duration of all steps together in seconds; 10 by default"`
}

type jobOut struct {
	State string `json:"state" jsonschema:"done or cancelled"`
	Done  int    `json:"done" jsonschema:"number of finished steps"`
	Steps int    `json:"steps" jsonschema:"number of steps that were requested"`
}

func main() {
	schema, err := jsonschema.For[jobIn](nil)
	if err != nil {
		log.Fatal(err)
	}
	// The SDK rejects values out of range. The schema has no defaults: with one, version 1.8 of
	// the SDK panics if a client sends null instead of arguments.
	steps, seconds := schema.Properties["steps"], schema.Properties["seconds"]
	steps.Minimum, steps.Maximum = new(1.0), new(1000.0)
	seconds.Minimum, seconds.Maximum = new(0.01), new(3600.0)

	server := mcp.NewServer(&mcp.Implementation{Name: "job", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{
		Name: "run_job", Title: "Run a job", InputSchema: schema,
		Description: "Runs a job of some steps, and reports each of them. It only waits.",
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: new(false)},
	}, runJob)
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}

func runJob(ctx context.Context, req *mcp.CallToolRequest, in jobIn) (*mcp.CallToolResult, jobOut, error) {
	//lint:ignore SA1019 deprecated since 2026-07-28, and what clients have
	logger := slog.New(mcp.NewLoggingHandler(req.Session, &mcp.LoggingHandlerOptions{LoggerName: "job"}))
	in.Steps, in.Seconds = cmp.Or(in.Steps, 10), cmp.Or(in.Seconds, 10)
	token := req.Params.GetProgressToken()
	logger.InfoContext(ctx, "job started", "steps", in.Steps, "seconds", in.Seconds)

	ticker := time.NewTicker(time.Duration(in.Seconds * float64(time.Second) / float64(in.Steps)))
	defer ticker.Stop()
	for done := range in.Steps {
		select {
		case <-ctx.Done():
			// The client no longer waits for the result, so the report also goes to standard error.
			log.Printf("job cancelled after %d of %d steps", done, in.Steps)
			return nil, jobOut{"cancelled", done, in.Steps}, nil
		case <-ticker.C:
		}
		if token != nil {
			// A lost notification is no reason to stop the job.
			_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(done + 1), Total: float64(in.Steps),
				Message: fmt.Sprintf("step %d of %d", done+1, in.Steps),
			})
		}
		logger.DebugContext(ctx, "step done", "step", done+1)
	}
	logger.InfoContext(ctx, "job done", "steps", in.Steps)
	return nil, jobOut{"done", in.Steps, in.Steps}, nil
}
