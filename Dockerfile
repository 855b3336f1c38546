# The operator's image: no torch, no build tools, a numeric user, nothing written to the root file system.
#
# `make images` builds it; a plain `docker build .` does too. Only the build stage sees how pip reaches packages
# (pip.conf, certificates and wheels, if the context has a folder `pip`); none of that is in the image. BASE may name a
# base by its digest. What Python and Debian packages there are is in /opt/heterotrain/sbom.cdx.json. Python packages are
# accepted only with the hashes in hack/images/*.lock (`make lock`).

ARG BASE=python:3.11-slim-bookworm
FROM ${BASE} AS environment
ENV PIP_CONFIG_FILE=/build/pip.conf
COPY hack/images/operator.lock pi[p] /build/
RUN python3 -m venv /opt/heterotrain \
    && /opt/heterotrain/bin/pip install --no-cache-dir --require-hashes --requirement /build/operator.lock \
    && /opt/heterotrain/bin/pip uninstall --yes --quiet pip setuptools
# Templates are checked against the newest Kubernetes that the library knows, strictly; the others are 100 MB.
RUN cd /opt/heterotrain/lib/python3.11/site-packages/kubernetes_validate/kubernetes-json-schema \
    && ls -d v*-local* | sort --version-sort | head --lines=-1 | xargs rm -r

FROM environment AS sbom
COPY pyproject.toml hack/images/debian_packages.py hack/images/sbom.lock /build/
RUN python3 -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --no-cache-dir --require-hashes --requirement /build/sbom.lock \
    && /opt/sbom/bin/cyclonedx-py environment --output-reproducible --pyproject /build/pyproject.toml \
        --output-file /sbom.cdx.json /opt/heterotrain/bin/python \
    && dpkg-query --show --showformat '${Package}\t${Version}\t${Architecture}\n' \
        | python3 /build/debian_packages.py /sbom.cdx.json

FROM ${BASE} AS code
COPY operator/heterotrain_operator /code/heterotrain_operator
COPY trainer-image/heterotrain /code/heterotrain
# Compiled here, because the root file system is read-only where it runs; by hash, because times do not travel.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /code

FROM ${BASE}
RUN echo 'heterotrain:x:65532:65532::/tmp:/usr/sbin/nologin' >> /etc/passwd
COPY --from=environment /opt/heterotrain /opt/heterotrain
COPY --from=sbom /sbom.cdx.json /opt/heterotrain/
COPY --from=code /code /opt/heterotrain/lib/python3.11/site-packages
# The name is for libraries that ask who runs them where the cluster chooses a user that no file knows.
ENV PATH=/opt/heterotrain/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp USER=heterotrain
WORKDIR /tmp
USER 65532:65532
ENTRYPOINT ["python", "-m", "heterotrain_operator.main"]
