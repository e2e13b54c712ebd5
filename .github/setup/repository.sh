# Create the environments, the variables and the rules of the main branch, with you as the reviewer. Read it before you run it.
: "${PROJECT:?}"
: "${NUMBER:?}"
: "${STATE:?}"
: "${REPOSITORY:?}"
POOL=projects/$NUMBER/locations/global/workloadIdentityPools/github

# Environments. `gh secret set` prompts for the passphrase, which is never a secret of the repository.
REVIEWERS='"reviewers": [{"type": "User", "id": '$(gh api user --jq .id)'}]'
for ENVIRONMENT in deploy teardown-by-hand plan; do
    case $ENVIRONMENT in
        plan) BODY='"reviewers": []' ;;
        *) BODY=$REVIEWERS ;;
    esac
    BRANCHES='{"protected_branches": false, "custom_branch_policies": true}'
    echo "{$BODY, \"deployment_branch_policy\": $BRANCHES}" | gh api --method PUT "repos/$REPOSITORY/environments/$ENVIRONMENT" --input -
    gh api --method POST "repos/$REPOSITORY/environments/$ENVIRONMENT/deployment-branch-policies" --raw-field name=main
    gh secret set PULUMI_CONFIG_PASSPHRASE --repo "$REPOSITORY" --env "$ENVIRONMENT"
done
# A clone of gemma-serving has more workflows than a folder that `gemma init` wrote. A check that no workflow reports blocks every pull request.
CHECKS='{"context": "set-up / set-up"}, {"context": "preview"}'
if test -d packages/gcp-tpu; then
    CHECKS='{"context": "test (3.11)"}, {"context": "test (3.13)"}, {"context": "packages (gcp-tpu)"}, {"context": "packages (loadtest)"}, {"context": "packages (localcloud)"}'
fi
gh secret delete PULUMI_CONFIG_PASSPHRASE --repo "$REPOSITORY" || true

# Variables
gh variable set GCP_PROJECT --repo "$REPOSITORY" --body "$PROJECT"
gh variable set GCP_WORKLOAD_IDENTITY_PROVIDER --repo "$REPOSITORY" --body "$POOL/providers/actions"
gh variable set GCP_PREVIEW_SERVICE_ACCOUNT --repo "$REPOSITORY" --body "ci-preview@$PROJECT.iam.gserviceaccount.com"
gh variable set GCP_PLAN_SERVICE_ACCOUNT --repo "$REPOSITORY" --body "ci-plan@$PROJECT.iam.gserviceaccount.com"
gh variable set GCP_DEPLOY_SERVICE_ACCOUNT --repo "$REPOSITORY" --body "ci-deploy@$PROJECT.iam.gserviceaccount.com"
gh variable set GCP_TEARDOWN_SERVICE_ACCOUNT --repo "$REPOSITORY" --body "ci-teardown@$PROJECT.iam.gserviceaccount.com"
gh variable set GCP_GUARD_SERVICE_ACCOUNT --repo "$REPOSITORY" --body "ci-guard@$PROJECT.iam.gserviceaccount.com"
gh variable set PULUMI_BACKEND_URL --repo "$REPOSITORY" --body "gs://$STATE"

# Rules of the main branch. The only person who can write may bypass them, and only in a pull request.
WRITERS=$(gh api "repos/$REPOSITORY/collaborators" --jq '[.[] | select(.permissions.push)] | length')
case $WRITERS in
    1) BYPASS='{"actor_id": 5, "actor_type": "RepositoryRole", "bypass_mode": "pull_request"}' ;;
    *) BYPASS= ;;
esac
gh api --method POST "repos/$REPOSITORY/rulesets" --input - <<EOF
{
  "name": "main",
  "target": "branch",
  "enforcement": "active",
  "bypass_actors": [$BYPASS],
  "conditions": {"ref_name": {"include": ["~DEFAULT_BRANCH"], "exclude": []}},
  "rules": [
    {"type": "deletion"},
    {"type": "non_fast_forward"},
    {
      "type": "pull_request",
      "parameters": {
        "required_approving_review_count": 1,
        "require_code_owner_review": true,
        "require_last_push_approval": true,
        "dismiss_stale_reviews_on_push": true,
        "required_review_thread_resolution": false
      }
    },
    {
      "type": "required_status_checks",
      "parameters": {
        "strict_required_status_checks_policy": false,
        "required_status_checks": [$CHECKS]
      }
    }
  ]
}
EOF
