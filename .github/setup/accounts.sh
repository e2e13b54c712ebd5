# Create the federation, the accounts of the workflows and their roles. Read it before you run it.
: "${PROJECT:?}"
: "${NUMBER:?}"
: "${REPOSITORY_ID:?}"
: "${STATE:?}"
case $STATE in $PROJECT-gemma-*) echo "STATE must not begin with $PROJECT-gemma-, as the buckets of stacks do." >&2 && exit 1 ;; esac
POOL=projects/$NUMBER/locations/global/workloadIdentityPools/github

# The bucket for Pulumi's states, unless it exists, and the federation.
gcloud services enable storage.googleapis.com iam.googleapis.com iamcredentials.googleapis.com sts.googleapis.com --project=$PROJECT
gcloud storage buckets create gs://$STATE --project=$PROJECT --location=us --uniform-bucket-level-access
gcloud storage buckets update gs://$STATE --versioning --public-access-prevention
# Google keeps a deleted pool and provider for 30 days, in which their names cannot be created again, only undeleted.
gcloud iam workload-identity-pools create github --project=$PROJECT --location=global || gcloud iam workload-identity-pools undelete github --project=$PROJECT --location=global
gcloud iam workload-identity-pools providers create-oidc actions --project=$PROJECT --location=global --workload-identity-pool=github --issuer-uri=https://token.actions.githubusercontent.com --attribute-mapping="google.subject='repository:' + assertion.repository_id + (has(assertion.environment) ? ':environment:' + assertion.environment : assertion.event_name == 'pull_request' ? ':pull_request' : ':ref:' + assertion.ref)" --attribute-condition="assertion.repository_id == '$REPOSITORY_ID' && assertion.event_name in ['pull_request', 'schedule', 'workflow_dispatch'] && (assertion.ref == 'refs/heads/main' || google.subject == 'repository:$REPOSITORY_ID:pull_request')" || gcloud iam workload-identity-pools providers undelete actions --project=$PROJECT --location=global --workload-identity-pool=github
for ACCOUNT in ci-preview ci-plan ci-deploy ci-teardown ci-guard; do
    gcloud iam service-accounts create $ACCOUNT --project=$PROJECT
done

# Each account is used by its own jobs only. With the last line, ci-deploy can create tokens for itself.
JOBS=principal://iam.googleapis.com/$POOL/subject/repository:$REPOSITORY_ID
gcloud iam service-accounts add-iam-policy-binding ci-preview@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.workloadIdentityUser --member="$JOBS:pull_request"
gcloud iam service-accounts add-iam-policy-binding ci-plan@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.workloadIdentityUser --member="$JOBS:environment:plan"
gcloud iam service-accounts add-iam-policy-binding ci-deploy@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.workloadIdentityUser --member="$JOBS:environment:deploy"
gcloud iam service-accounts add-iam-policy-binding ci-teardown@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.workloadIdentityUser --member="$JOBS:environment:teardown-by-hand"
gcloud iam service-accounts add-iam-policy-binding ci-guard@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.workloadIdentityUser --member="$JOBS:ref:refs/heads/main"
gcloud iam service-accounts add-iam-policy-binding ci-deploy@$PROJECT.iam.gserviceaccount.com --project=$PROJECT --role=roles/iam.serviceAccountTokenCreator --member=serviceAccount:ci-deploy@$PROJECT.iam.gserviceaccount.com

# Accounts that read. The second list is for drift.yml.
for ROLE in serviceusage.serviceUsageConsumer browser tpu.viewer run.viewer compute.viewer; do
    for ACCOUNT in ci-preview ci-plan; do
        gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:$ACCOUNT@$PROJECT.iam.gserviceaccount.com --role=roles/$ROLE
    done
done
for ROLE in iam.securityReviewer iam.serviceAccountViewer artifactregistry.reader secretmanager.viewer storage.bucketViewer monitoring.viewer; do
    gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-plan@$PROJECT.iam.gserviceaccount.com --role=roles/$ROLE
done
for BUCKET in $STATE ${MODELS:-}; do
    for ACCOUNT in ci-preview ci-plan; do
        gcloud storage buckets add-iam-policy-binding gs://$BUCKET --member=serviceAccount:$ACCOUNT@$PROJECT.iam.gserviceaccount.com --role=roles/storage.objectViewer
    done
done

# Accounts that write can grant only the roles in LIMIT, of which Google accepts ten.
LIMIT="^;^title=roles-of-stacks;expression=api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly(['roles/compute.osLogin', 'roles/compute.viewer', 'roles/iap.tunnelResourceAccessor', 'roles/logging.logWriter', 'roles/monitoring.metricWriter', 'roles/tpu.admin'])"
for ACCOUNT in ci-deploy ci-teardown ci-guard; do
    gcloud projects add-iam-policy-binding $PROJECT "--condition=$LIMIT" --member=serviceAccount:$ACCOUNT@$PROJECT.iam.gserviceaccount.com --role=roles/resourcemanager.projectIamAdmin
done

# Accounts that write manage only the buckets and secrets with the names of stacks. Google checks a creation on the project, where no name exists yet.
BUCKETS="^;^title=buckets-of-stacks;expression=resource.name.startsWith('projects/_/buckets/$PROJECT-gemma-')"
SECRETS="^;^title=secrets-of-stacks;expression=resource.name.startsWith('projects/$NUMBER/secrets/gemma-')"
for ACCOUNT in ci-deploy ci-teardown ci-guard; do
    gcloud projects add-iam-policy-binding $PROJECT "--condition=$BUCKETS" --member=serviceAccount:$ACCOUNT@$PROJECT.iam.gserviceaccount.com --role=roles/storage.admin
    gcloud projects add-iam-policy-binding $PROJECT "--condition=$SECRETS" --member=serviceAccount:$ACCOUNT@$PROJECT.iam.gserviceaccount.com --role=roles/secretmanager.admin
done

# ci-deploy
gcloud iam roles create gemmaCreator --project=$PROJECT --title=gemmaCreator --permissions=storage.buckets.create,secretmanager.secrets.create
gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-deploy@$PROJECT.iam.gserviceaccount.com --role=projects/$PROJECT/roles/gemmaCreator
for ROLE in serviceusage.serviceUsageConsumer iam.serviceAccountAdmin iam.serviceAccountUser artifactregistry.admin viewer iam.securityReviewer monitoring.viewer monitoring.editor logging.configWriter run.admin logging.viewer tpu.admin iap.tunnelResourceAccessor compute.osLogin compute.networkAdmin compute.securityAdmin; do
    gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-deploy@$PROJECT.iam.gserviceaccount.com --role=roles/$ROLE
done
gcloud storage buckets add-iam-policy-binding gs://$STATE --member=serviceAccount:ci-deploy@$PROJECT.iam.gserviceaccount.com --role=roles/storage.objectUser

# ci-teardown
for ROLE in serviceusage.serviceUsageConsumer iam.serviceAccountAdmin artifactregistry.admin viewer iam.securityReviewer monitoring.editor logging.configWriter run.admin tpu.admin compute.networkAdmin compute.securityAdmin; do
    gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-teardown@$PROJECT.iam.gserviceaccount.com --role=roles/$ROLE
done
gcloud storage buckets add-iam-policy-binding gs://$STATE --member=serviceAccount:ci-teardown@$PROJECT.iam.gserviceaccount.com --role=roles/storage.objectUser

# ci-guard runs without an approval, so it deletes service accounts but cannot set who uses them.
gcloud iam roles create gemmaGuard --project=$PROJECT --title=gemmaGuard --permissions=iam.serviceAccounts.delete
gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-guard@$PROJECT.iam.gserviceaccount.com --role=projects/$PROJECT/roles/gemmaGuard
for ROLE in serviceusage.serviceUsageConsumer artifactregistry.admin viewer iam.securityReviewer monitoring.viewer monitoring.editor logging.configWriter run.admin tpu.admin compute.networkAdmin compute.securityAdmin; do
    gcloud projects add-iam-policy-binding $PROJECT --condition=None --member=serviceAccount:ci-guard@$PROJECT.iam.gserviceaccount.com --role=roles/$ROLE
done
